"""The certificates of one cluster: an authority, and what it signs for servers and clients."""

from __future__ import annotations

import base64
import ipaddress
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Where a PEM certificate and its private key lie."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority that lives as long as its cluster."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("holdfast-cluster", ())
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(_pem(self._certificate))

    def server(self, file_name: str, common_name: str, names: list[str], addresses: list[str]) -> KeyPair:
        """A serving certificate for these DNS names and IP addresses."""
        alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        extension = x509.SubjectAlternativeName(alternatives)
        return self._issue(file_name, _subject(common_name, ()), ExtendedKeyUsageOID.SERVER_AUTH, extension)

    def client(self, file_name: str, user: str, *groups: str) -> KeyPair:
        """A client certificate that the API server reads as this user in these groups."""
        return self._issue(file_name, _subject(user, groups), ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def _issue(
        self,
        file_name: str,
        subject: x509.Name,
        usage: x509.ObjectIdentifier,
        alternatives: x509.SubjectAlternativeName | None,
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self._name, key.public_key())
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        pair = KeyPair(self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key")
        pair.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        _write_key(pair.key, key)
        return pair


def write_signing_key(path: Path) -> None:
    """The key that signs service account tokens."""
    _write_key(path, rsa.generate_private_key(public_exponent=65537, key_size=2048))


def write_kubeconfig(path: Path, server: str, authority: Path, client: KeyPair) -> Path:
    """A self-contained kubeconfig: certificates inside, so that the file can be copied."""
    cluster = {"server": server, "certificate-authority-data": _base64(authority)}
    user = {"client-certificate-data": _base64(client.certificate), "client-key-data": _base64(client.key)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "holdfast", "cluster": cluster}],
        "users": [{"name": "holdfast", "user": user}],
        "contexts": [{"name": "holdfast", "context": {"cluster": "holdfast", "user": "holdfast"}}],
        "current-context": "holdfast",
    }
    path.write_text(json.dumps(document, indent=1))
    path.chmod(0o600)
    return path


def _subject(common_name: str, groups: tuple[str, ...]) -> x509.Name:
    organisations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organisations, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + _LIFETIME)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    encoding, encryption = serialization.Encoding.PEM, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, encryption))
    path.chmod(0o600)


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
