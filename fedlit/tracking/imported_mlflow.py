"""MLflow, imported with its database: the fork server of a sweep imports this once, and none of the runs does.

Threads, connections and files are not among it; each run opens its own.
"""

import logging
from importlib import import_module

from fedlit.tracking.mlflow import prepare
from fedlit.tracking.store import import_mlflow

prepare()  # first, because MLflow reads its environment when it is imported
try:
    import_mlflow()
    for name in ("alembic.command", "mlflow.store.tracking.sqlalchemy_store", "sqlalchemy.dialects.sqlite"):
        import_module(name)
except Exception:  # each run says what is wrong with MLflow
    logging.getLogger(__name__).debug("MLflow cannot be imported", exc_info=True)
