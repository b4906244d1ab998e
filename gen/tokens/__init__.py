"""Text and token ids: tokenizers, how tokens spell, and how chats mark thoughts."""
