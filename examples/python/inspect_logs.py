"""Runs of a scenario as a log of Inspect: for `inspect view`, its data frames, and Inspect Scout.

    pip install 'greenroom[inspect]' pandas pyarrow
    python inspect_logs.py scenarios/prisoners-dilemma.yaml
    inspect view --log-dir logs
"""

import sys

from inspect_ai.analysis import EvalModel, SampleSummary, messages_df, samples_df

import greenroom as gr
from greenroom.adapters.inspect import write_log


def main(scenario: str) -> None:
    """Plays a scenario twice, writes the log, and reads it as data frames."""
    experiment = gr.experiment(scenario, seeds=2, max_tokens=30)
    log = write_log(experiment, "logs")
    print(log)
    samples = samples_df(log, columns=[*EvalModel, *SampleSummary])
    scores = [name for name in samples.columns if name.startswith("score_")]
    print(samples[["model", "epoch", "total_tokens", *scores]].T.to_string())
    said = messages_df(log)
    print(said.groupby("role")["content"].count().to_string())


if __name__ == "__main__":
    main(sys.argv[1])
