"""HTTPS: the certificate of the server, and the verification of client certificates."""

import ssl
from pathlib import Path
from typing import NoReturn


def tls_context(
    certfile: Path, keyfile: Path | None, ca_certs: Path | None, cert_reqs: int
) -> ssl.SSLContext:
    """Return the TLS context. Raises OSError that names the file that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    read = certfile
    try:
        context.load_cert_chain(certfile, keyfile, password=_refuse_password)
        if ca_certs is not None:
            read = ca_certs
            context.load_verify_locations(ca_certs)
    except (OSError, ValueError) as error:
        files = f"{read}" if read is ca_certs or keyfile is None else f"{certfile}, {keyfile}"
        raise OSError(f"can't read {files} for HTTPS: {error}") from error
    context.verify_mode = ssl.VerifyMode(cert_reqs)
    return context


def _refuse_password() -> NoReturn:
    """Refuse encrypted keys: the library would otherwise prompt on the terminal."""
    raise ValueError("the key is encrypted; give one that is not")
