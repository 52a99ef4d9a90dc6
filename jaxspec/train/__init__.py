"""What is fitted: a distilled draft, and in `hrad` the head that guesses how much of a continuation stands.

Reads `measure`, `decode` and `networks`; scripts and the command line import it.
"""
