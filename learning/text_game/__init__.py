"""Text game: rooms, items, containers, keys and things to use, as pure functions of a world and a state."""
