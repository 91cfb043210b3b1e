"""Client of OpenAI-compatible servers: requests, limits, spending, stored responses."""
