"""Census-Income with and without alignment: paired seeds, test AUCs, differences with 95 % intervals.

Run `python benchmarks/census_income_pairs.py`; it goes on where it was interrupted. Each pair has the same seed, so the
same initial weights and batches. Writes `docs/results/census-income.csv`, from which the README's table is made:
`python benchmarks/census_income_pairs.py --table` prints it.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "census-income.csv"
METHODS = ("none", "adversarial")
TASKS = ("income", "college", "never_married")
COLUMNS = ("method", "seed", *TASKS, "discriminator_accuracy", "second_to_first_order_ratio", "seconds")


def read_results(path: Path = RESULTS) -> list[dict[str, str]]:
    """Return the finished runs, one dict a row of the CSV file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_results(rows: list[dict[str, Any]], path: Path = RESULTS) -> None:
    """Write all runs under a temporary name, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".writing")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(temporary, path)


def run_one(prepared: Any, method: str, seed: int) -> dict[str, Any]:
    """Train the bundled config with one method and seed; return its test AUCs."""
    import keras

    from gradalign.training.batches import shuffled_batches, steps_per_epoch
    from gradalign.training.build import build_model
    from gradalign.training.check import report
    from gradalign.training.measure import measure
    from gradalign.training.scoring import scores

    config = prepared.config
    config = config.model_copy(
        update={
            "alignment": config.alignment.model_copy(update={"method": method}),
            "training": config.training.model_copy(update={"seed": seed}),
        }
    )
    rows = prepared.train
    steps = steps_per_epoch(len(rows), config.training.batch_size)
    keras.utils.set_random_seed(seed)
    model = build_model(config, prepared.preprocessing, steps * config.training.epochs)
    data = shuffled_batches(rows, config.training.batch_size, seed, 0, config.training.epochs)
    started = time.perf_counter()
    history = model.fit(data, epochs=config.training.epochs, steps_per_epoch=steps, shuffle=False, verbose=0).history
    seconds = time.perf_counter() - started
    test_x, test_y = prepared.test
    found = measure(test_y, scores(model.base, test_x))
    row: dict[str, Any] = {"method": method, "seed": seed, "seconds": f"{seconds:.1f}"}
    row.update({task: f"{found[task]['auc']:.6f}" for task in TASKS})
    if model.alignment is not None:
        checked = report(model, rows, config.training.batch_size, seed)
        row["discriminator_accuracy"] = f"{history['discriminator_accuracy'][-1]:.4f}"
        row["second_to_first_order_ratio"] = f"{checked.second_to_first:.4f}"
    return row


def table(rows: list[dict[str, str]]) -> str:
    """Return the README's table: mean and sd of each method, and the paired difference with its 95 % interval."""
    from scipy import stats

    by_method = {method: {row["seed"]: row for row in rows if row["method"] == method} for method in METHODS}
    seeds = sorted(set(by_method["none"]) & set(by_method["adversarial"]), key=int)
    lines = [
        "| task | plain sum | aligned | paired difference (95 % interval) |",
        "|---|---|---|---|",
    ]
    for task in TASKS:
        plain, aligned = ([float(by_method[method][seed][task]) for seed in seeds] for method in METHODS)
        differences = [a - p for a, p in zip(aligned, plain, strict=True)]
        mean = statistics.mean(differences)
        half = stats.t.ppf(0.975, len(seeds) - 1) * statistics.stdev(differences) / len(seeds) ** 0.5
        cells = [f"{statistics.mean(aucs):.4f} ± {statistics.stdev(aucs):.4f}" for aucs in (plain, aligned)]
        lines.append(f"| {task} | {cells[0]} | {cells[1]} | {mean:+.5f} ({mean - half:+.5f} to {mean + half:+.5f}) |")
    return "\n".join(lines)


def activity(rows: list[dict[str, str]]) -> str:
    """Return the README's line on what the alignment did: discriminator accuracy and second- over first-order norm."""
    aligned = [row for row in rows if row["method"] == "adversarial"]
    accuracies = [float(row["discriminator_accuracy"]) for row in aligned]
    ratios = [float(row["second_to_first_order_ratio"]) for row in aligned]
    accuracy = f"{statistics.mean(accuracies):.3f} ± {statistics.stdev(accuracies):.3f}"
    ratio = f"{statistics.mean(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    return (
        f"| discriminator accuracy (chance 0.333) | {accuracy} |\n"
        f"| second- over first-order gradient norm at the shared embeddings, strength 1 | {ratio} |"
    )


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="seeds 0 to N-1 (default 10)")
    parser.add_argument("--table", action="store_true", help="print the table of the finished runs and stop")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = list(read_results())
    if not arguments.table:
        from gradalign.training.build import prepare
        from gradalign.training.config_file import load_config
        from gradalign.training.rows import read_tables

        config = load_config("census-income", [])
        prepared = prepare(config, read_tables(config.data))
        done = {(row["method"], int(row["seed"])) for row in rows}
        wanted = [(method, seed) for seed in range(arguments.seeds) for method in METHODS]
        for number, (method, seed) in enumerate(wanted, 1):
            if (method, seed) not in done:
                rows.append(run_one(prepared, method, seed))
                write_results(rows)
                print(f"{number}/{len(wanted)}", rows[-1], flush=True)
    print(table(rows), activity(rows), sep="\n\n")


if __name__ == "__main__":
    main()
