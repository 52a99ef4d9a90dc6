"""Writes the tables of the documents anew, from the JSON files that commands and scripts wrote.

    python scripts/documents/tables.py            # rewrites README.md and scripts/results/README.md
    python scripts/documents/tables.py --check    # says which tables are not what the files give, and fails

In a document a table stands between `<!-- table: NAME -->` and `<!-- end of table -->`; `result_tables.TABLES` and
`ablation_tables.TABLES` have the names. Everything else of a document is left as it is. Results of `ablation.py` are
found by their names, which end in the task and the temperature, as in `ablation-methods-gsm8k-t0.json`.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import ablation_tables
import result_tables

TABLES = {**result_tables.TABLES, **ablation_tables.TABLES}
RESULTS = Path(__file__).parents[1] / "results"
DOCUMENTS = (Path(__file__).parents[2] / "README.md", RESULTS / "README.md")
MARKED = re.compile(
    r"(?P<begin><!-- table: (?P<name>[^>]+) -->\n)(?P<table>.*?)(?P<end><!-- end of table -->)", re.DOTALL
)


def rewritten(text: str, folder: Path) -> tuple[str, list[str]]:
    """A document with its tables made anew, and the names of those that changed.

    Raises:
        ValueError: A marker names no table.
    """
    changed = []

    def renew(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in TABLES:
            raise ValueError(f"There is no table {name!r}; there are: {', '.join(TABLES)}.")
        table = f"\n{TABLES[name](folder)}\n\n"
        if table != found["table"]:
            changed.append(name)
        return found["begin"] + table + found["end"]

    return MARKED.sub(renew, text), changed


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a table is not up to date")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="where the JSON files lie")
    parser.add_argument("documents", nargs="*", type=Path, default=DOCUMENTS, metavar="DOCUMENT")
    args = parser.parse_args(argv)
    stale = []
    for document in args.documents:
        text, changed = rewritten(document.read_text(encoding="utf-8"), args.results)
        stale += [f"{document}: {name}" for name in changed]
        if changed and not args.check:
            document.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{'stale' if args.check else 'renewed'}: {name}")
    if stale and args.check:
        raise SystemExit("Run `python scripts/documents/tables.py`.")


if __name__ == "__main__":
    main()
