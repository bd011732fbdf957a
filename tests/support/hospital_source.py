"""A source of three hospitals, as a user would write it."""

from small_records import make_records

from fedlit.data.federated import FederatedDataModule
from fedlit.data.partition import Partition
from fedlit.data.records import Records


def unchanged(records: Records) -> Records:
    return records


class Source(FederatedDataModule):
    """A user's source: only records(). `change` alters the records for a test.

    Args:
        where: A folder for the cache.
    """

    def __init__(self, where: str, partition: Partition, change=None, **kwargs):
        super().__init__(partition, image_size=8, cache_dir=where, **kwargs)
        self.change = change or unchanged
        self.reads = 0

    def records(self) -> Records:
        self.reads += 1
        return self.change(make_records(self.cache_dir))


def ready(data: FederatedDataModule) -> FederatedDataModule:
    data.prepare_data()
    data.setup()
    return data
