"""Makes a page of a notebook, as it is stored: nothing is run."""

import base64
import json
import re


def markdown(path):
    """The notebook as Markdown, and its pictures as {path in the site: bytes}."""
    parts, pictures = [], {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code":
            parts.append(f"```python\n{source}\n```")
            parts += (shown(output, path.stem, pictures) for output in cell["outputs"])
    title, _, rest = "\n\n".join(parts).partition("\n")
    link = f'<a href="{path.name}" download>download {path.name}</a>'
    return f"{title}\n\n*This page shows a notebook: {link} to run it.*\n{rest}\n", pictures


def shown(output, name, pictures):
    """One output of a cell; a picture is added to `pictures`."""
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    data = {kind: "".join(content) for kind, content in output["data"].items()}
    if "image/png" in data:
        file = f"{name}/picture_{len(pictures) + 1}.png"
        pictures[file] = base64.b64decode(data["image/png"])
        return f"![Output of the cell above]({file})"
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.S)
        table = re.sub(r' (border="1"|class="dataframe"|style="[^"]*")', "", table)
        return re.sub(r"\n\s*", "\n", table).strip()
    return f"```text\n{data['text/plain'].rstrip()}\n```"
