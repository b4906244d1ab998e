"""Calls of tools: what a tool takes, how the families of models write a call, what a prompt says about tools."""
