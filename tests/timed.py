"""Made-up times of a benchmark."""

import numpy as np

from jaxspec.study.bench_results import Output, Sample


def samples(rows, num_tokens=10, stats=None, first=0.5):
    """Samples of these seconds by prompt and repeat."""
    output = Output(np.arange(num_tokens), stats)
    return [[Sample(output, seconds, first) for seconds in repeats] for repeats in rows]
