"""Command lines for the tests of the commands, and what they leave behind."""

QUICK = ["--set", "epochs=2", "--set", "batch=1000"]
HOW = "engine eager, float32, on cpu"  # what a run says first
BEGUN = ["config.json", "metrics.jsonl", "split.txt"]
FINISHED = sorted([*BEGUN, "features.safetensors", "figures", "model.safetensors"])


def train(out, *settings, dataset="two-moons", labels=12, method="pi"):
    kept = [] if labels is None else ["--labels", labels]
    return ["train", dataset, *kept, "--method", method, "--out", out, *settings]


def files(folder):
    return sorted(p.name for p in folder.iterdir() if p.name != ".lock") if folder.exists() else None


def assert_refused(answer, *words):
    """Exit code 2, one sentence on stderr, nothing on stdout."""
    code, out, err = answer
    assert code == 2
    assert out == ""
    assert err.startswith("sntg: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words), err
