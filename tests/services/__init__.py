"""The servers that tests and benchmarks use, private to this checkout and started when first asked for.

A user who has them already gives their URLs in the environment, and then nothing is started:
`POSTROOM_TEST_POSTGRESQL_URL` (instead of postgresql-15), `POSTROOM_TEST_POSTGRESQL_NEWEST_URL` (postgresql-18),
`POSTROOM_TEST_MYSQL_URL` (mariadb) and `POSTROOM_TEST_PGBOUNCER_URL`.
"""

from tests.services.lifetime import in_use
from tests.services.processes import ServerUnavailable
from tests.services.registry import NAMES, disconnect, empty, fresh_database, url, used, version

__all__ = ["NAMES", "ServerUnavailable", "disconnect", "empty", "fresh_database", "in_use", "url", "used", "version"]
