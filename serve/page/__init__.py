"""The page at /: a chat with the model, with tokens coloured by their origin.

The files are read once and served by name. The browser may load nothing from elsewhere.
"""

from importlib.resources import files

from fastapi import APIRouter, HTTPException, Response

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        # Images of a conversation, which the page has read itself.
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_files() -> dict[str, bytes]:
    found = (file for file in files(__name__).iterdir() if _suffix(file.name) in MEDIA_TYPES)
    return {file.name: file.read_bytes() for file in found}


def page_router() -> APIRouter:
    router, contents = APIRouter(include_in_schema=False), page_files()

    @router.get("/")
    async def show_page() -> Response:
        return await show_file("index.html")

    @router.get("/page/{name}")
    async def show_file(name: str) -> Response:
        if name not in contents:
            raise HTTPException(404, f"the page has no file {name!r}")
        return Response(contents[name], media_type=MEDIA_TYPES[_suffix(name)], headers=HEADERS)

    return router


def _suffix(name: str) -> str:
    return name.rpartition(".")[2]
