"""Quick imports: the collector comes back, and LanceDB's stand-ins make the real thing."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from models.startup import collector_paused

REPOSITORY = Path(__file__).parents[2]


def test_the_collector_comes_back_also_after_a_fault():
    with pytest.raises(ImportError), collector_paused():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_lancedb_comes_without_its_rest_client_and_can_still_make_one():
    code = (
        "import sys\nfrom models.startup import REST_CLIENT, import_lancedb\n"
        "lancedb = import_lancedb()\n"
        "assert lancedb is import_lancedb()\n"
        "assert REST_CLIENT not in sys.modules and f'{REST_CLIENT}.table_api' not in sys.modules\n"
        "import lance_namespace_urllib3_client as client\n"
        "print(type(client.TableApi()).__module__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "lance_namespace_urllib3_client.api.table_api"
