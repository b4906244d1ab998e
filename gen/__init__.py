"""Text and structured data from local language models, on exactly the device that was asked for."""
