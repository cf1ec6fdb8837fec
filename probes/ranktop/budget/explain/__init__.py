"""What a strategy does for one run: who holds what, by which formula, what is sent, what changes it."""

from ranktop.budget.explain.build import explain as explain
from ranktop.budget.explain.explanation import Explanation as Explanation
