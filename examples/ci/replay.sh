#!/usr/bin/env bash
# Checks all recordings of a repository against their scenarios, without a model. Run it in CI, and before you commit.
#
#     ./replay.sh [FOLDER...]        default: recordings
#
# Exit codes: 0 all match, 1 an assertion failed, 2 a scenario is invalid, 3 something drifted, 4 something can't be checked.
# In GitHub workflows, it annotates the line of each problem and writes a summary to the workflow's page.
set -euo pipefail
cd "$(dirname "$0")"

folders=("$@")
[ ${#folders[@]} -gt 0 ] || folders=(recordings)

reports=(--junit "${JUNIT_FILE:-replay.xml}")
if [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then
    reports+=(--github --markdown "$GITHUB_STEP_SUMMARY")
fi

exec greenroom replay "${folders[@]}" "${reports[@]}"
