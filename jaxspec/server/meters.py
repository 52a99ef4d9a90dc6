"""What `/metrics` says, for Prometheus: vLLM's names behind `jaxspec_`."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from jaxspec.server.answers import Answer
from jaxspec.server.engine import Engine

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Meters:
    """Counts of a server's requests."""

    def __init__(self, engine: Engine) -> None:
        self._registry = registry = CollectorRegistry()

        def of(kind: Any, name: str, about: str, labels: tuple[str, ...] = (), **options: Any) -> Any:
            return kind(f"jaxspec_{name}", about, labels, registry=registry, **options)

        of(Gauge, "num_requests_running", "Rows that are decoded").set_function(lambda: engine.num_running)
        of(Gauge, "num_requests_waiting", "Rows that wait for a slot").set_function(lambda: engine.num_waiting)
        self._prompt = of(Counter, "prompt_tokens", "Tokens of prompts")
        self._new = of(Counter, "generation_tokens", "New tokens")
        self._finished = of(Counter, "request_success", "Rows that ended, by why", ("finished_reason",))
        self._refused = of(Counter, "request_refused", "Requests that were not answered, by status", ("status",))
        self._first = of(Histogram, "time_to_first_token_seconds", "Until the first token", buckets=_SECONDS)
        self._whole = of(Histogram, "e2e_request_latency_seconds", "Until the end", buckets=_SECONDS)
        self._rounds = of(Counter, "spec_decode_num_drafts", "Rounds")
        self._drafted = of(Counter, "spec_decode_num_draft_tokens", "Tokens proposed")
        self._accepted = of(Counter, "spec_decode_num_accepted_tokens", "Of these, accepted ones")

    def answered(self, answer: Answer, seconds: float) -> None:
        """Counts an answer that has ended, its reader gone or not."""
        self._prompt.inc(answer.num_prompt_tokens)
        self._new.inc(answer.num_tokens)
        for row in answer.rows:
            self._finished.labels(row.finish_reason or "abort").inc()
            self._rounds.inc(int(row.accepted_lengths.sum()))
            self._drafted.inc(row.drafted)
            self._accepted.inc(int(row.accepted_lengths @ range(len(row.accepted_lengths))))
        if answer.first is not None:
            self._first.observe(answer.first - answer.begun)
        self._whole.observe(seconds)

    def refused(self, status: int) -> None:
        """Counts a request that was not answered."""
        self._refused.labels(str(status)).inc()

    def text(self) -> bytes:
        """All of them in Prometheus' form."""
        return generate_latest(self._registry)
