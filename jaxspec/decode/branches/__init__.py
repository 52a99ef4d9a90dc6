"""Decoding in branches: SpecBranch and PEARL, which draft on while the target verifies, and the cuts (H-RAD).

Reads `decode`'s state and proposals; `decode` exports its constructors. This library's words, and SpecBranch's:

    line          what the draft drew behind the newest token, one position after another     prefix and branch point
    place         a position on the line: 0 is right behind the root
    pending       the line's first tokens, which the target verifies in this round            tokens in the pipeline
    branch point  the place behind them, where the draft forks                                x_b
    candidates    the tokens that a fork tries, C at most                                     branches' first tokens
    branch        a candidate and its continuation: G tokens                                  branch, of γ tokens
    stands        a pending token that the target accepts                                     accepted
    survives      a branch: all that is pending stands, and its candidate is accepted         "Match"
    cut           how much of the survivor's continuation becomes pending                     posterior drafting, H-RAD
    fresh         a row behind a rejection (or its prompt), which has no line                 rollback
    width         how many of the candidates are tried                                        k
    draft stage   the draft works alone where a row is fresh                                  draft stage

`lines` holds what is carried, `drafter` the draft's half of a round, `decoder` the target's half and the round itself,
`cuts` and `widths` the rules that are handed in, `counts` what a round reports.
"""
