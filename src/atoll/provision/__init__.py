"""Stage 1: where root file systems come from."""

from atoll.model.errors import NotFoundError
from atoll.model.template import Template
from atoll.provision.host import host_template


def resolve_template(name: str) -> Template:
    """The template called `name`.

    Raises:
        NotFoundError: there is none.
    """
    if name != "host":
        raise NotFoundError(f"template: no such template, got {name!r}", hint="the only template is `host`")
    return host_template()
