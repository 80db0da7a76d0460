"""One GPU a worker."""

import execnet
import pytest

from gdn_apc.fuzz import devices

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("environment", "counted", "expected"),
    [
        ({}, 0, []),
        ({}, 3, ["0", "1", "2"]),
        ({devices.VISIBLE: "2, 5"}, 8, ["2", "5"]),
        ({devices.VISIBLE: "GPU-8f3a,MIG-1/2"}, 8, ["GPU-8f3a", "MIG-1/2"]),
        ({devices.VISIBLE: ""}, 8, []),
    ],
)
def test_gpus_are_those_that_this_process_may_use(environment, counted, expected):
    assert devices.visible(environment, lambda: counted) == expected


def test_each_worker_gets_one_and_more_workers_share():
    specs = [execnet.XSpec("popen") for _ in range(5)]
    devices.spread(specs, ["2", "5"])

    assert [spec.env[devices.VISIBLE] for spec in specs] == ["2", "5", "2", "5", "2"]


def test_a_worker_starts_with_its_gpu_in_its_environment(pytester, monkeypatch):
    """Through pytest-xdist as it is: each worker sees another GPU, from its first line on."""
    monkeypatch.setattr(devices, "visible", lambda: ["7", "8"])
    pytester.makepyfile(
        """
        import os, pathlib, pytest
        @pytest.mark.fuzz
        def test_gpu(worker_id):
            pathlib.Path(worker_id).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
        """
    )
    result = pytester.runpytest_inprocess("-n2", "-m", "fuzz", "--dist=each", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=2)
    assert [path.read_text() for path in sorted(pytester.path.glob("gw*"))] == ["7", "8"]


def test_workers_of_other_sessions_are_left_alone(pytester, monkeypatch):
    monkeypatch.setattr(devices, "visible", lambda: ["7", "8"])
    pytester.makepyfile("import os\ndef test_gpu(): assert 'CUDA_VISIBLE_DEVICES' not in os.environ")
    result = pytester.runpytest_inprocess("-n2", "--dist=each", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=2)


@pytest.mark.parametrize("gpus", [[], ["0"]])
def test_one_gpu_or_none_changes_nothing(gpus):
    specs = [execnet.XSpec("popen")]
    devices.spread(specs, gpus)

    assert specs[0].env == {}
