"""Models leave posttrain: folders for transformers, GGUF files, repositories of the Hugging Face hub."""
