"""The loop: rows that come and go, the step that changes them, and the way of their tokens to the host."""
