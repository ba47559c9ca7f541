"""Servers as Debian ships them, each with a conversation that a client holds over one connection.

    service = SERVICES["nginx"]
    service.missing()                           "" or the package that is not installed
    started = service.start(node, address, port, directory)
    started.pid, service.steps                  what workloads/talker.py says

All run as root, because CRIU needs CAP_SYS_RESOURCE for processes of other users. PostgreSQL and
Apache refuse that; a preloaded library makes them see another user. `third_party/install services`
installs the packages.
"""
import os
import pwd
import shutil
import struct
from pathlib import Path

from .node import LabError, wait_until
from .programs import find_program

TOMCAT = "/usr/share/tomcat10"
GET = b"GET /state HTTP/1.1\r\nHost: lab\r\n\r\n"
STATE = "the state of the service\n"


def http(end=STATE.encode()):
    return [[GET, end]]


def _pq(kind, text):
    return kind + struct.pack(">I", len(text) + 4) + text


def _fastcgi(kind, text=b""):
    return struct.pack(">BBHHBB", 1, kind, 1, len(text), 0, 0) + text


def _fastcgi_request(script):
    pairs = {"REQUEST_METHOD": "GET", "SCRIPT_FILENAME": script, "SCRIPT_NAME": "/state.php"}
    words = b"".join(
        bytes([len(name), len(value)]) + name.encode() + value.encode()
        for name, value in pairs.items()
    )
    keeps_connection = struct.pack(">HB5x", 1, 1)
    return (
        _fastcgi(1, keeps_connection) + _fastcgi(4, words) + _fastcgi(4) + _fastcgi(5)
    )


def let_enter(directory):
    """Lets programs of other users reach the directory."""
    for parent in directory.parents:
        if parent == Path("/tmp"):
            break
        parent.chmod(0o755)


class Service:
    package = ""
    program = ""
    user = "root"

    def missing(self):
        return "" if self.find() else self.package

    def find(self):
        return shutil.which(self.program, path="/usr/sbin:/usr/bin:/sbin:/bin")

    def command(self, address, port, directory):
        """Prepares `directory`, and returns the words of the command."""
        raise NotImplementedError

    def start(self, node, address, port, directory):
        directory.mkdir()
        words = self.command(address, port, directory)
        pid = node.spawn(words, log=directory / "log", directory=directory)

        def listens():
            if not node.alive(pid):
                raise LabError(f"{self.program} has ended: {(directory / 'log').read_text()[-800:]}")
            return node.listens(port)

        wait_until(listens, 60, f"{self.program} to listen")
        return pid

    def steps(self, directory):
        raise NotImplementedError

    def changes_itself(self, name, before, after):
        """Whether the program makes this difference when a move interrupts its system call."""
        return False


class Redis(Service):
    package = program = "redis-server"

    def command(self, address, port, directory):
        # Otherwise its allocator may start a thread at any time.
        words = f"--port {port} --bind {address} --protected-mode no --jemalloc-bg-thread no"
        words += " --appendonly yes --save"
        return [self.find(), *words.split(), "", "--dir", directory]

    def steps(self, directory):
        return [[b"INCR kept\r\n", b"\r\n"]]


class Memcached(Service):
    package = program = "memcached"

    def command(self, address, port, directory):
        return [self.find(), *f"-u root -l {address} -p {port} -U 0 -m 16".split()]

    def steps(self, directory):
        return [[b"set kept 0 0 1\r\n1\r\n", b"STORED"], [b"incr kept 1\r\n", b"\r\n"]]


class Mosquitto(Service):
    package = program = "mosquitto"

    def command(self, address, port, directory):
        text = f"listener {port} {address}\nallow_anonymous true\nuser root\n"
        (directory / "conf").write_text(text)
        return [self.find(), "-c", directory / "conf"]

    def steps(self, directory):
        connect = b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04talk"
        return [[connect, b"\x20\x02\x00\x00"], [b"\xc0\x00", b"\xd0\x00"]]


class Nginx(Service):
    package, program = "nginx-light", "nginx"

    def command(self, address, port, directory):
        (directory / "state").write_text(STATE)
        (directory / "conf").write_text(
            f"daemon off; user root; worker_processes 2; pid {directory}/pid;\n"
            f"error_log {directory}/errors; events {{}}\n"
            f"http {{ access_log {directory}/accesses; keepalive_requests 1000000;\n"
            + "".join(f"{kind}_temp_path {directory}/{kind};\n" for kind in self.TEMPORARY)
            + f"server {{ listen {address}:{port}; root {directory}; }} }}\n"
        )
        return [self.find(), "-c", directory / "conf"]

    TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")

    def steps(self, directory):
        return http()


class OtherUser(Service):
    """A server that refuses to run as root."""

    user = "nobody"

    def as_other(self):
        library = find_program("libother_uid.so")
        return ["env", f"LD_PRELOAD={library}", f"OTHER_UID={pwd.getpwnam(self.user).pw_uid}"]


class Apache(OtherUser):
    package, program = "apache2-bin", "apache2"

    def command(self, address, port, directory):
        (directory / "state").write_text(STATE)
        modules = "mpm_prefork authz_core authn_core authz_host"
        (directory / "conf").write_text(
            "".join(
                f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"
                for name in modules.split()
            )
            + f"ServerName lab\nListen {address}:{port}\nPidFile {directory}/pid\n"
            f"DefaultRuntimeDir {directory}\nErrorLog {directory}/errors\n"
            f"DocumentRoot {directory}\nStartServers 4\nMinSpareServers 2\nMaxSpareServers 4\n"
            "KeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 120\n"
        )
        return [*self.as_other(), self.find(), "-DFOREGROUND", "-f", directory / "conf"]

    def steps(self, directory):
        return http()


class Postgres(OtherUser):
    package, program, user = "postgresql", "postgres", "postgres"
    settings = {"shared_buffers": "16MB"}

    def find(self):
        return next(Path("/usr/lib/postgresql").glob("*/bin/postgres"), None)

    def command(self, address, port, directory):
        data = directory / "data"
        data.mkdir()
        shutil.chown(data, self.user, self.user)
        self._make(data)
        with open(data / "pg_hba.conf", "a") as hosts:
            hosts.write("host all all all trust\n")
        settings = {
            "listen_addresses": address,
            "port": port,
            "unix_socket_directories": data,
            "dynamic_shared_memory_type": "mmap",  # /dev/shm belongs to a node
            **self.settings,
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        # PostgreSQL's System V segment moves with an IPC namespace of its own.
        return ["unshare", "--ipc", *self.as_other(), self.find(), "-D", data, *words]

    def _make(self, data):
        let_enter(data)
        as_user = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        initdb = self.find().with_name("initdb")
        self.node.run([*as_user, initdb, "-D", data, "-A", "trust", "--no-sync"], timeout=120)

    def start(self, node, *words):
        self.node = node
        return super().start(node, *words)

    def steps(self, directory):
        ready = b"Z\x00\x00\x00\x05I"
        hello = _pq(b"", struct.pack(">I", 196608) + b"user\0postgres\0database\0postgres\0\0")
        make = _pq(b"Q", b"create table if not exists kept (n serial)\0")
        count = _pq(b"Q", b"insert into kept default values; select max(n) from kept\0")
        return [[hello, ready], [make, ready], [count, ready]]


class MariaDb(Service):
    package, program = "mariadb-server", "mariadbd"

    def command(self, address, port, directory):
        data = directory / "data"
        make = "mariadb-install-db --no-defaults --user=root --auth-root-authentication-method=normal"
        self.node.run([*make.split(), f"--datadir={data}"], timeout=120)
        (directory / "first.sql").write_text(
            "create or replace user talker@'%' identified via mysql_native_password using '';\n"
            "grant all on *.* to talker@'%';\n"
            "create database if not exists kept;\n"
            "create table if not exists kept.kept (n int auto_increment primary key);\n"
        )
        words = (
            f"--no-defaults --user=root --datadir={data} --bind-address={address} --port={port} "
            f"--socket={directory}/socket --pid-file={directory}/pid --innodb-use-native-aio=0 "
            f"--innodb-buffer-pool-size=16M --init-file={directory}/first.sql"
        )
        return [self.find(), *words.split()]

    def start(self, node, *words):
        self.node = node
        return super().start(node, *words)

    def changes_itself(self, name, before, after):
        # When poll(2) is interrupted, the server makes the connection a blocking one.
        return name.endswith(" flags") and int(before, 8) & ~os.O_NONBLOCK == int(after, 8)

    def steps(self, directory):
        abilities = 0x200 | 0x8000 | 0x80000  # protocol 4.1, secure connection, plugin
        hello = struct.pack("<IIB23x", abilities, 1 << 24, 33) + b"talker\0\0mysql_native_password\0"
        insert = b"\x03insert into kept.kept values (null)"
        return [
            [b"", b"mysql_native_password"],
            [struct.pack("<I", len(hello) | 1 << 24) + hello, b"\x02\x00\x00\x00"],
            [struct.pack("<I", len(insert)) + insert, b"\x01\x00\x01"],
        ]


class PhpFpm(Service):
    package = program = "php-fpm"

    def find(self):
        return next(Path("/usr/sbin").glob("php-fpm[0-9]*"), None)

    def command(self, address, port, directory):
        (directory / "state.php").write_text('<?php echo "the state ", getmypid();')
        (directory / "conf").write_text(
            f"[global]\nerror_log={directory}/errors\npid={directory}/pid\ndaemonize=no\n"
            f"[pool]\nuser=root\ngroup=root\nlisten={address}:{port}\npm=static\n"
            "pm.max_children=3\n"
        )
        return [self.find(), "-R", "-n", "-y", directory / "conf"]

    def steps(self, directory):
        request = _fastcgi_request(f"{directory}/state.php")
        return [[request, struct.pack(">BBHH", 1, 3, 1, 8)]]


class Exim(Service):
    package, program = "exim4-daemon-light", "exim4"
    user = "Debian-exim"  # it drops the rights of root

    def command(self, address, port, directory):
        let_enter(directory)
        directory.chmod(0o777)
        (directory / "conf").write_text(
            f"local_interfaces = {address}\ndaemon_smtp_ports = {port}\n"
            f"spool_directory = {directory}/spool\nlog_file_path = {directory}/%slog\n"
            "smtp_accept_max_nonmail = 1000000\nhosts_require_helo =\nprimary_hostname = lab\n"
            f"pid_file_path = {directory}/pid\nkeep_environment =\n"
        )
        return [self.find(), "-C", directory / "conf", "-bdf"]

    def steps(self, directory):
        return [[b"", b"220 "], [b"HELO lab\r\n", b"250 "], [b"NOOP\r\n", b"250 "]]


class Aiosmtpd(Service):
    package, program = "python3-aiosmtpd", "aiosmtpd"

    def command(self, address, port, directory):
        mailbox = ["-c", "aiosmtpd.handlers.Mailbox", directory / "mail"]
        return [self.find(), "-n", "-l", f"{address}:{port}", *mailbox]

    def steps(self, directory):
        return [[b"", b"220 "], [b"HELO lab\r\n", b"250 "], [b"NOOP\r\n", b"250 "]]


class Erlang(Service):
    """The machine of RabbitMQ and ejabberd (BEAM), with a small server."""

    package, program = "erlang-base", "erl"

    def command(self, address, port, directory):
        ip = address.replace(".", ",")
        code = (
            f"{{ok, L}} = gen_tcp:listen({port}, [binary, {{ip, {{{ip}}}}}, {{packet, line}},"
            "{active, false}, {reuseaddr, true}]), T = ets:new(kept, [public]),"
            "ets:insert(T, {n, 0}), Talk = fun Talk(S) -> case gen_tcp:recv(S, 0) of"
            '{ok, _} -> N = ets:update_counter(T, n, 1), gen_tcp:send(S, [integer_to_list(N), "\\n"]),'
            "Talk(S); _ -> ok end end, Serve = fun Serve() -> {ok, S} = gen_tcp:accept(L),"
            "P = spawn(fun() -> receive go -> Talk(S) end end),"
            "gen_tcp:controlling_process(S, P), P ! go, Serve() end, Serve()."
        )
        return [self.find(), "-noshell", "-eval", code]

    def steps(self, directory):
        return [[b"next\n", b"\n"]]


class Tomcat(Service):
    package, program = "tomcat10", "java"

    def find(self):
        return Path(TOMCAT).exists() and super().find()

    def command(self, address, port, directory):
        for name in ("conf", "logs", "temp", "work", "webapps/ROOT"):
            (directory / name).mkdir(parents=True)
        (directory / "webapps/ROOT/state").write_text(STATE)
        (directory / "conf/web.xml").write_text(
            '<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="5.0"><servlet>'
            "<servlet-name>default</servlet-name><servlet-class>"
            "org.apache.catalina.servlets.DefaultServlet</servlet-class></servlet><servlet-mapping>"
            "<servlet-name>default</servlet-name><url-pattern>/</url-pattern></servlet-mapping>"
            "</web-app>"
        )
        (directory / "conf/server.xml").write_text(
            '<Server port="-1"><Service name="lab"><Connector address="%s" port="%s" '
            'maxKeepAliveRequests="-1" keepAliveTimeout="120000"/><Engine name="lab" '
            'defaultHost="lab"><Host name="lab" appBase="webapps"/></Engine></Service></Server>'
            % (address, port)
        )
        path = f"{TOMCAT}/bin/bootstrap.jar:{TOMCAT}/bin/tomcat-juli.jar"
        options = "-Xmx96m -XX:-UsePerfData -XX:+UseSerialGC"
        return [
            *(self.find(), *options.split(), "-cp", path, f"-Dcatalina.home={TOMCAT}"),
            f"-Dcatalina.base={directory}",
            *(f"-Djava.io.tmpdir={directory}/temp", "org.apache.catalina.startup.Bootstrap"),
            "start",
        ]

    def steps(self, directory):
        return http()


SERVICES = {
    "redis with AOF": Redis(),
    "memcached": Memcached(),
    "mosquitto": Mosquitto(),
    "nginx": Nginx(),
    "Apache prefork": Apache(),
    "PostgreSQL": Postgres(),
    "MariaDB": MariaDb(),
    "php-fpm": PhpFpm(),
    "exim": Exim(),
    "aiosmtpd": Aiosmtpd(),
    "a BEAM program": Erlang(),
    "Tomcat": Tomcat(),
}
