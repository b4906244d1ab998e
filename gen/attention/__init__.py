"""gen's own attention: each row looks at its own columns, each key is read once, and bits are the same in any batch."""
