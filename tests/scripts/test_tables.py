"""The documents' tables are what the JSON files give."""

import json
import shutil

import ablation_tables
import pytest
import result_tables
import tables

BEGIN, END = "<!-- table: forwards -->", "<!-- end of table -->"


def test_documents_are_what_the_files_give(capsys):
    """Where this fails, run `python scripts/documents/tables.py`."""
    tables.main(["--check"])
    assert capsys.readouterr().out == ""


def test_every_table_stands_in_a_document():
    texts = [document.read_text(encoding="utf-8") for document in tables.DOCUMENTS]
    named = [found["name"] for text in texts for found in tables.MARKED.finditer(text)]
    assert sorted(named) == sorted(tables.TABLES)
    assert sum(text.count("<!-- table") for text in texts) == len(named)


class TestRewriting:
    """A document on other results."""

    @pytest.fixture
    def document(self, tmp_path):
        """A document with a marker, and its folder with a file of two forms."""
        forms = {"blocks": {"1": 20.0, "5": 22.26}, "without": {"1": 21.0, "5": 30.0}}
        (tmp_path / "speed.json").write_text(json.dumps({"forwards": forms}))
        document = tmp_path / "page.md"
        document.write_text(f"Before.\n\n{BEGIN}\n{END}\n\nBehind.\n")
        return document

    def test_fills_markers_and_leaves_the_rest(self, document, capsys):
        words = ["--results", str(document.parent), str(document)]
        with pytest.raises(SystemExit, match=r"tables\.py"):
            tables.main(["--check", *words])
        assert capsys.readouterr().out == f"stale: {document}: forwards\n"
        tables.main(words)
        lines = [
            "| tokens of one forward | 1 | 5 |",
            "|---|---|---|",
            "| weights in blocks too | 20.0 | 22.3 |",
            "| without | 21.0 | 30.0 |",
        ]
        assert document.read_text() == "\n".join(["Before.", "", BEGIN, "", *lines, "", END, "", "Behind.", ""])
        tables.main(["--check", *words])

    def test_refuses_an_unknown_name(self, document):
        with pytest.raises(ValueError, match="There is no table 'costs'; there are: summary, "):
            tables.rewritten(document.read_text().replace("forwards", "costs"), document.parent)


class TestAblations:
    """Tables of `ablation.py`'s files, found by their names."""

    @pytest.fixture
    def folder(self, tmp_path):
        measured = {"tokens_per_round": 2.5, "mean_accepted_run": 1.625, "rollback_path": 0.8, "rollback_all": 0.9}
        times = {"simulated_flat_c8_1": 1.25, "simulated_flat_c8_2": 1.5, "simulated_machine_1": 0.75}
        arm = measured | times | {"simulated_machine_2": 1.0}
        setting = {"max_branches": 6, "epsilon": 0.3, "tally": {"labels": [1, 6, 3]}}
        for name, arms in (
            ("methods-qa-t0", ["SpS", "PEARL"]),
            ("specbranch-qa-t0", ["SpecBranch", "SpecBranch, confidence"]),
            ("methods-qa-t0.6", ["SpS", "PEARL"]),
            ("parts-qa-t0", ["full"]),
        ):
            settings = {"num_prompts": 4, "max_new_tokens": 8, "temperature": 0.0, "overhead_ms": 1.5}
            measured_arms = [arm | {"arm": one} | (setting if "Branch" in one else {}) for one in arms]
            result = {"settings": settings, "arms": measured_arms}
            (tmp_path / f"ablation-{name}.json").write_text(json.dumps(result))
        shutil.copy(tables.RESULTS / "ablation-aligned-humaneval-t0.json", tmp_path)
        return tmp_path

    def test_have_a_row_for_each_arm_of_each_file(self, folder):
        cold, warm = ablation_tables.ablations(folder).split("### qa, T = ")[1:]
        lines = [line.strip("| ").split(" | ") for line in cold.strip().splitlines()]
        assert lines[0] == ["0"]
        assert lines[2][0].startswith(
            "4 prompts, 8 new tokens; every simulated round is charged its forwards and 1.5 ms"
        )
        assert lines[4][-2:] == ["c = 8", "this machine"]
        assert lines[6] == ["SpS", "2.50", "1.62", "0.80", "0.90", "1.25 / 1.50", "0.75 / 1.00"]
        wanted = ["SpS", "PEARL", "SpecBranch, ε 0.3, k_max 6", "– confidence alone, ε 0.3, k_max 6"]
        assert [line[0] for line in lines[6:]] == wanted
        assert warm.startswith("0.6")
        assert warm.count("SpS") == 1
        assert "full" not in cold  # a table of its own

    def test_charge_the_overhead_that_a_file_lacks(self):
        # A round of 2.5 tokens at 30 ms a plain token took 50 ms at 1.5 times as fast; it takes 52 with the overhead.
        arm = {"simulated_flat_c8_1": 1.5, "tokens_per_round": 2.5}
        overhead = json.loads((ablation_tables.PAIR / "profile-t0.json").read_text())["overhead_ms"]
        lacking = {"settings": {"temperature": 0.0}, "arms": [arm]}
        assert ablation_tables.speedup(arm, "simulated_flat_c8_1", lacking) == pytest.approx(75 / (50 + overhead))
        charged = {"settings": {"temperature": 0.0, "overhead_ms": 1.0}, "arms": [arm]}
        assert ablation_tables.speedup(arm, "simulated_flat_c8_1", charged) == 1.5

    def test_set_specbranch_beside_the_pearl_of_its_task(self, folder):
        assert "| qa, T=0 | SpecBranch, ε 0.3, k_max 6 | 2.50 / 2.50 = 1.00 |" in ablation_tables.rollback(folder)

    def test_say_what_a_head_decides(self, folder):
        assert "| qa, T=0 | SpecBranch, ε 0.3, k_max 6 | 10 | 10% | 30% | 40% |" in ablation_tables.deciding(folder)

    def test_refuse_another_name(self, folder):
        (folder / "ablation-other.json").write_text("{}")
        with pytest.raises(ValueError, match=r"ablation-other\.json must be named like"):
            ablation_tables.groups(folder)


def test_a_number_that_is_not_known_is_a_dash():
    assert (result_tables.number(None), result_tables.number(1.005, 1)) == ("–", "1.0")
