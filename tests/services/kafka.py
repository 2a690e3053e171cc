"""Kafka itself, one node without ZooKeeper: fetched with Maven unless KAFKA_HOME says where it is."""

from __future__ import annotations

import logging
import os
import re
import signal
from pathlib import Path
from urllib.parse import urlsplit

from tests.services import packages, places
from tests.services.places import OUR_OWN, locked, whole
from tests.services.processes import Command, ServerUnavailable, run
from tests.services.server import Server, free_port

VERSION = "4.1.1"
PROJECT = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>postroom</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},PROXIED://127.0.0.1:{proxied},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},PROXIED://127.0.0.1:{proxy}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={data}
num.partitions=4
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
"""
CLUSTER = "cG9zdHJvb20tdGVzdHMtMQ"
MEMORY = ["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


class Kafka(Server):
    name = "kafka"
    account = OUR_OWN
    farewell = signal.SIGKILL  # its data is thrown away

    def __init__(self, *, variable: str) -> None:
        self.variable = variable

    def install(self) -> None:
        if self._jars() is None:
            packages.program("java", package="default-jre-headless")
            maven = packages.program("mvn", package="maven")
            with locked("kafka-jars"):
                if self._jars() is None:
                    self._fetch(maven)

    def prepare(self, folder: Path, port: int) -> None:
        settings = folder / "settings.properties"
        ports = {name: free_port(folder / f"{name}-port") for name in ("controller", "proxied")}
        proxy = folder / "proxy-port"
        ports["proxy"] = (
            int(proxy.read_text()) if proxy.exists() else free_port(proxy)
        )  # not free: a proxy may be there
        settings.write_text(SETTINGS.format(port=port, data=folder / "data", **ports))
        self.account.own(settings)
        if not (folder / "data").exists():
            (folder / "data").mkdir()
            self.account.own(folder / "data")
            self._run(folder, ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", settings])

    def command(self, folder: Path, port: int) -> Command:
        return self._java(["kafka.Kafka", folder / "settings.properties"])

    def address(self, port: int) -> str:
        return f"kafka://127.0.0.1:{port}"

    def proxied(self) -> tuple[str, int]:
        """Where a proxy connects to, and on which port it must listen: a broker tells its clients where to go."""
        self.url()
        inner, outer = ((self._folder / f"{name}-port").read_text() for name in ("proxied", "proxy"))
        return self.address(int(inner)), int(outer)

    def ask_version(self, url: str) -> str:
        from confluent_kafka.admin import AdminClient

        quiet = logging.getLogger("kafka.quiet")
        quiet.disabled = True
        admin = AdminClient({"bootstrap.servers": urlsplit(url).netloc, "socket.timeout.ms": 5_000}, logger=quiet)
        admin.list_topics(timeout=5)
        found = {match[1] for jar in self._jars() or () if (match := re.match(r"kafka_2\.13-(.*)\.jar", jar.name))}
        return f"Kafka {', '.join(sorted(found)) or '(version unknown)'}"

    def _run(self, folder: Path, arguments: Command) -> None:
        run(self._java(arguments), cwd=folder, **self.account.rights)

    def _java(self, arguments: Command) -> Command:
        jars = self._jars()
        if not jars:
            raise ServerUnavailable("Kafka is not installed: python -m tests.services install")
        java = packages.program("java", package="default-jre-headless")
        return [java, *MEMORY, "-cp", os.pathsep.join(map(str, jars)), *arguments]

    def _jars(self) -> list[Path] | None:
        home = os.environ.get("KAFKA_HOME")
        folder = Path(home) / "libs" if home else self._libraries
        return sorted(folder.glob("*.jar")) or None

    @property
    def _libraries(self) -> Path:
        return places.ROOT / "kafka-jars"

    def _fetch(self, maven: str) -> None:
        with whole(self._libraries) as folder:
            folder.mkdir(parents=True)
            (folder / "pom.xml").write_text(PROJECT)
            goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
            run([maven, "--batch-mode", "--quiet", *goal], cwd=folder)
