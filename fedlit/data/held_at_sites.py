"""Data of which nothing is here: what the lead of a federation over sites writes in the place of a table."""

from fedlit.core.errors import ConfigError
from fedlit.data.federated import FederatedDataModule
from fedlit.data.labels import checked_classes


class HeldAtSites(FederatedDataModule):
    """Images that sites have, each its own: for a lead, who has none.

    Sites read the data of their own files. What counts of these are the classes, which all sites name in the same order, and
    the sizes of batches.

    Args:
        classes: Names of the classes, in order.
        batch_size: Number of examples in a training batch of one client.
        eval_batch_size: Number of examples in a batch of an evaluation.
        in_chans: Number of channels of the images.
        image_size: Height and width of the images, as the sites' files have it.

    Raises:
        ConfigError: There are no classes, or one is there twice; in ``setup()``, as no image is here.
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
        """Do nothing: the sites do it."""

    def setup(self, stage: str | None = None) -> None:
        """Refuse to train here.

        Raises:
            ConfigError: Always, with what to write instead.
        """
        raise ConfigError(
            "data: HeldAtSites has classes and no images, which are at the sites of a lead's folder: --sites FOLDER; to train "
            "here, name data of your own (`fedlit list`)"
        )
