"""What tests of security share."""

import pytest
from support.clusters.certificates import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates that the tests of a module issue, in a folder of the module."""
    return Certificates(tmp_path_factory.mktemp("certificates"))
