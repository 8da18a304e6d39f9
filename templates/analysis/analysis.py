"""The first figure of this experiment, computed from its tables with statsmodels, and a mixed model to start from.

    pip install pandas pyarrow statsmodels
    python analysis.py
"""

import pathlib

import numpy as np
import pandas as pd
import statsmodels.formula.api as smf

FOLDER = pathlib.Path(__file__).parent
FIGURE = @FIGURE@
CLUSTER = @CLUSTER@  # observations of one are not independent

data = pd.read_parquet(FOLDER / (@TABLE@ + ".parquet"))
@SELECT@data["y"] = @VALUE@
data = data.dropna(subset=["y"]).astype({"y": float})
data["cluster"] = pd.factorize(data[CLUSTER])[0]

# The mean of each condition, with a standard error that is clustered. The program's intervals are computed from the
# same variance; those of rates are Wilson's.
figures = pd.read_parquet(FOLDER / "figures.parquet").query("figure == @FIGURE").set_index("condition")
print(f"{FIGURE}, clustered by {CLUSTER}")
for condition, part in data.groupby("condition", sort=False):
    mean, error = part["y"].mean(), float("nan")
    if part["cluster"].nunique() > 1:
        fit = smf.ols("y ~ 1", part).fit(cov_type="cluster", cov_kwds={"groups": part["cluster"].to_numpy()})
        error = fit.bse["Intercept"]
    print(f"  {condition}: {mean:.4f}, standard error {error:.4f}, {part['cluster'].nunique()} clusters, {len(part)} observations")
    assert abs(mean - figures.loc[condition, "value"]) < 1e-9, "not the figure in figures.parquet"

# y ~ condition + (1 | cluster). For a rate, this is a linear probability model.
if data["condition"].nunique() > 1 and data["y"].nunique() > 1:
    data["group"] = pd.Categorical(data["condition"], categories=data["condition"].unique())
    try:
        print(smf.mixedlm("y ~ group", data, groups=data["cluster"]).fit().summary())
    except np.linalg.LinAlgError as error:
        print(f"The mixed model can't be fitted: {error}")
