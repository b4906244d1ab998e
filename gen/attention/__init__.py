"""Attention of gen's own: each row's own columns, each key read once, and the same bits in any batch."""
