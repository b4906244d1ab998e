"""Hundreds of fixed calls and types: what each gives with one commit of gen, and with another one."""
