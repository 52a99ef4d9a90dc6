"""H-RAD's training: rounds are collected, a head is fitted, set (`deciding`) and evaluated, and gets a card.

Reads `measure`, `networks` and `plan.theory`; the command line and scripts import it.
"""

from jaxspec.train.hrad.evaluation import Cost, Evaluation, cost
from jaxspec.train.hrad.trained import Collected, Trained, metrics, train

__all__ = ["Collected", "Cost", "Evaluation", "Trained", "cost", "metrics", "train"]
