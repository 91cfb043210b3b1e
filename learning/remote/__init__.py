"""Models behind servers that speak OpenAI's protocol: asked within limits, never paid twice for an answer."""
