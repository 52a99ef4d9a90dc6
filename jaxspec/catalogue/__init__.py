"""What is known by name: the methods with their options, and prompts files.

Reads `decode`, `plan` and `pairs`; the command line imports it.
"""
