"""Text and token ids: tokenizers, how tokens spell, how long texts are in tokens, and how chats mark thoughts."""
