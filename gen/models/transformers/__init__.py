"""Hugging Face transformers models: placement, a cache whose rows come and go, masks, images."""
