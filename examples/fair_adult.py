"""Predict incomes of UCI Adult under limits by sex: one model, its prices, and what each limit costs."""

import sys

from gdpa.paper.data.adult import load_adult
from gdpa.sklearn import ConstrainedClassifier, demographic_parity, equalized_odds, recall_at_least

data = load_adult()
every = int(sys.argv[1]) if len(sys.argv) > 1 else 1  # use every n-th row for a quick look
X, y, sex = data.train_x[::every], data.train_y[::every], data.train_sex[::every]

TASKS = {
    "no limits": [],
    "demographic parity": [demographic_parity(0.02)],
    "equalized odds": [equalized_odds(0.05)],
    "parity and recall": [demographic_parity(0.05), recall_at_least(0.6)],
}
for name, limits in TASKS.items():
    model = ConstrainedClassifier(limits).fit(X, y, groups=sex)
    positive = model.predict(data.test_x)
    women, men = (positive[data.test_sex == group].mean() for group in ("Female", "Male"))
    print(f"{name}: test error {(positive != data.test_y).mean():.3f}, selected {women:.3f} of women, {men:.3f} of men")
    for limit, price in model.multipliers_.items():
        if price > 1e-3:
            print(f"    price {price:.3f} for {limit}")
    print(f"    not met: {model.unmet_ or 'none'}")

model = ConstrainedClassifier([demographic_parity(0.02)])
for point in model.frontier(X, y, [0.02, 0.05, 0.1], groups=sex).points:
    print(f"bound {point.limit:.2f}: training error {point.error:.4f}, slope of the objective {point.slope:.2f}")
