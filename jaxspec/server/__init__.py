"""A server with OpenAI's interface: one thread decodes, rows join between segments of rounds, asyncio serves.

Reads `catalogue` and all below it; the command `jaxspec serve` starts it. It needs the extra `serve`.
"""
