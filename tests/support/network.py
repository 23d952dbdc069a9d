"""A certificate authority of nobody's, and a forward proxy, both for tests on loopback."""

from __future__ import annotations

import contextlib
import datetime
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

__all__ = ["ForwardProxy", "certificate"]


def certificate(folder: Path, host: str) -> tuple[ssl.SSLContext, Path]:
    """What a server needs to be `host`, and the file of the authority that vouches for it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)

    def signed(
        subject: str,
        key: ec.EllipticCurvePrivateKey,
        issuer: str,
        signer: ec.EllipticCurvePrivateKey,
        is_authority: bool,
    ) -> x509.Certificate:
        builder = x509.CertificateBuilder(
            issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]),
            subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(days=1),
            not_valid_after=now + datetime.timedelta(days=1),
        )
        builder = builder.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(subject)]), critical=False)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        builder = builder.add_extension(identifier, critical=False)
        subject_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        return builder.add_extension(subject_key, critical=False).sign(signer, hashes.SHA256())

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = signed("authority.test", authority_key, "authority.test", authority_key, is_authority=True)
    own = signed(host, key, "authority.test", authority_key, is_authority=False)
    authority_file, server_file = folder / "authority.pem", folder / "server.pem"
    authority_file.write_bytes(authority.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    server_file.write_bytes(private + own.public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_file)
    return context, authority_file


class _Handler(StreamRequestHandler):
    server: ForwardProxy

    def handle(self) -> None:
        head = [self.rfile.readline()]
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            head.append(line)
        method, target, _ = head[0].split(b" ")
        self.server.seen.append(f"{method.decode()} {target.decode()}")
        if self.server.refuses:
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", self.server.port_behind)) as upstream:
            if method == b"CONNECT":
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                path = b"/" + target.split(b"/", 3)[3]
                upstream.sendall(
                    b"".join([method + b" " + path + b" HTTP/1.1\r\n", *head[1:], b"Connection: close\r\n\r\n"])
                )
            self._tunnel(upstream)

    def _tunnel(self, upstream: socket.socket) -> None:
        pairs = {self.connection: upstream, upstream: self.connection}
        with contextlib.suppress(OSError):
            while True:
                for source in select.select(list(pairs), [], [], 10)[0]:
                    if not (data := source.recv(65536)):
                        return
                    pairs[source].sendall(data)


class ForwardProxy(ThreadingTCPServer):
    """A proxy that leads every host to one port of loopback; `seen` are the first lines, without the version."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port_behind: int, *, refuses: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port_behind = port_behind
        self.refuses = refuses
        self.seen: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[ForwardProxy]:
        thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            thread.join()
