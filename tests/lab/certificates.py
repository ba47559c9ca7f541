"""A certificate authority, with the openssl commands of the documentation."""
import subprocess
from pathlib import Path

from .pace import patience


class Authority:
    def __init__(self, directory, name="authority"):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True)
        self._openssl(
            f"req -x509 -newkey ed25519 -nodes -days 3650 -subj /CN={name} -keyout ca.key -out ca.crt"
        )

    def _openssl(self, words):
        subprocess.run(
            ["openssl", *words.split()],
            cwd=self.directory,
            check=True,
            capture_output=True,
            timeout=patience(20),
        )

    def issue(self, name, *allowed_peers, days=365, usage=None):
        """Issues a certificate and returns the options of a daemon that uses it. Negative days: it
        has expired."""
        extensions = f"-addext subjectAltName=DNS:{name}"
        if usage:
            extensions += f" -addext extendedKeyUsage={usage}"
        self._openssl(
            f"req -newkey ed25519 -nodes -subj /CN={name} {extensions} -keyout {name}.key -out {name}.csr"
        )
        self._openssl(
            f"x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -days {days} -copy_extensions copy -out {name}.crt"
        )
        return self.options(name, *allowed_peers)

    def revoke(self, *names):
        """Revokes certificates, and returns the file with the new list of revoked certificates."""
        settings = self.directory / "ca.cnf"
        if not settings.exists():
            settings.write_text(
                "[ca]\ndefault_ca = list\n[list]\ndatabase = index.txt\n"
                "default_md = default\ndefault_crl_days = 30\n"
            )
            (self.directory / "index.txt").touch()
        command = "ca -config ca.cnf -cert ca.crt -keyfile ca.key"
        for name in names:
            self._openssl(f"{command} -revoke {name}.crt")
        self._openssl(f"{command} -gencrl -out ca.crl")
        return self.directory / "ca.crl"

    def options(self, name, *allowed_peers, authority=None):
        options = [
            "--tls-cert",
            self.directory / f"{name}.crt",
            "--tls-key",
            self.directory / f"{name}.key",
            "--tls-ca",
            (authority or self).directory / "ca.crt",
        ]
        for peer in allowed_peers:
            options += ["--allow-peer", peer]
        return [str(option) for option in options]
