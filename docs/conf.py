"""How the pages become a site: ``tox -e docs`` builds it into ``.tox/docs/tmp/site``. Nothing serves it."""

project = "Maple Server"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = project
html_copy_source = False
html_show_sphinx = False
exclude_patterns = ["pictures"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_inline"]
suppress_warnings = [
    "myst.xref_missing",  # links to the code beside the pages; a test follows them
    "misc.highlighting_failure",  # samples are cut out of larger ones
]
