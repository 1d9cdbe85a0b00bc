"""The bench of a transport by its name, with its real server."""

from data_http import http_bench
from data_transports import drive_bench, s3_bench, ssh_bench


def bench_of(request, tmp_path, tmp_path_factory):
    """For the transport that the parameter of a fixture names."""
    name = request.param
    if name == "s3":
        return s3_bench(request.getfixturevalue("s3_bucket"), tmp_path)
    if name == "http":
        return http_bench(tmp_path)
    if name == "drive":
        return drive_bench(tmp_path)
    return ssh_bench(name, request.getfixturevalue("ssh_server"), tmp_path, tmp_path_factory.mktemp("c"))
