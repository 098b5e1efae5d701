"""`lastword label` refuses an unsuitable table in one line, before it opens a page or a model."""

MODEL = ("--model", "lastword/demo-organism", "--choices", "animal,money")


def test_tables_that_cannot_be_labelled_are_refused_in_one_line(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content, why in (
        ("labelled.csv", "text,label\na,money\nb,\n", "has labels already"),
        ("bare.csv", "text\n", "has no rows; expected a header and rows"),
        ("other.csv", "text,label\na,unknown\nb,\n", "has labels already"),
    ):
        (tmp_path / name).write_text(content)
        code, out, err = run("label", name, *MODEL)
        assert (code, out) == (1, "") and why in err and err.count("\n") == 1
    code, _, err = run("label", "missing.csv", *MODEL)
    assert code == 1 and "missing.csv" in err
    assert not (tmp_path / "labelled").exists()
    assert run("label", "bare.csv", *MODEL[:2])[0] == 2, "the options have to be given"
