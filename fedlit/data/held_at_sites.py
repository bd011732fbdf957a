"""Data that only the sites of a federation have; the lead names their classes."""

from fedlit.core.errors import ConfigError
from fedlit.data.federated import FederatedDataModule
from fedlit.data.labels import checked_classes


class HeldAtSites(FederatedDataModule):
    """Images that only the sites have, for the lead of a federation over sites.

    Sites read the data that their own files describe. Of this class, only the classes and the batch sizes count. Each
    site names those of the classes that it labels, in any order.

    Args:
        classes: Names of the classes, in order.
        batch_size: Number of examples in a training batch of one client.
        eval_batch_size: Number of examples in a batch of an evaluation.
        in_chans: Number of channels of the images.
        image_size: Height and width of the images, as in the sites' files.

    Raises:
        ConfigError: There are no classes, or a class is repeated. ``setup()`` always raises it.
    """

    def __init__(
        self,
        classes: list[str],
        batch_size: int = 32,
        eval_batch_size: int = 128,
        in_chans: int = 1,
        image_size: int = 224,
    ) -> None:
        super().__init__(
            None, batch_size=batch_size, eval_batch_size=eval_batch_size, in_chans=in_chans, image_size=image_size
        )
        self.classes = checked_classes(classes, classes)

    def prepare_data(self) -> None:
        """Do nothing: the sites prepare their data."""

    def setup(self, stage: str | None = None) -> None:
        """Raise an error, because there are no images to train on.

        Raises:
            ConfigError: Always; the message names the options to use instead.
        """
        raise ConfigError(
            "data: expected images, found HeldAtSites, which only names classes; pass --sites FOLDER to train at the "
            "sites, or choose other data to train here (`fedlit list`)"
        )
