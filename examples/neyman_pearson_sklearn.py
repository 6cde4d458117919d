"""Find the 8s among noisy digits while at most 5 % of the others are misread, also on digits not seen before."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gdpa.sklearn import NeymanPearsonClassifier

X, y = load_digits(return_X_y=True)
X = X + 4 * np.random.default_rng(0).standard_normal(X.shape)  # pixels lie between 0 and 16
y = np.where(y == 8, "eight", "other")
X, X_new, y, y_new = train_test_split(X, y, test_size=0.3, stratify=y, random_state=0)


def report(title, model):
    wrong = model.predict(X_new) != y_new
    others, eights = (wrong[y_new == label].mean() for label in ("other", "eight"))
    print(f"{title:24} error on new data: others {others:.3f}, eights {eights:.3f}")


plain = NeymanPearsonClassifier(priority="eight", thresholds={"other": 0.05}, regularizer=0.01)
model = make_pipeline(StandardScaler(), plain).fit(X, y)
report("limit on training data", model)
print("price of the limit:", plain.multipliers_, "certified:", plain.certificate_.holds(plain.tol))

# Half of the others are held out. With probability 0.95 over their draw, the limit holds on all digits to come.
sure = NeymanPearsonClassifier(
    "eight", {"other": 0.05}, regularizer=0.01, calibration="order-statistic", delta=0.05, random_state=0
)
model = make_pipeline(StandardScaler(), sure).fit(X, y)
report("limit with a guarantee", model)

for point in plain.frontier(StandardScaler().fit_transform(X), y, [0.02, 0.05, 0.1, 0.2]).points:
    print(f"limit {point.limit:.2f}: error of the eights {point.error:.3f}, slope of the objective {point.slope:.2f}")
