"""What a machine boots: the newest Debian kernel installed here, and an initramfs that leads to this machine's own root file system."""
import lzma
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from lab.node import LabError

HERE = Path(__file__).resolve().parent
BUSYBOX = Path("/bin/busybox")

# Others are loaded by the kernel on demand, from the root file system.
MODULES = (
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "virtio_net",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "fuse",
    "tun",
)


class CannotRun(LabError):
    """This machine lacks what virtual machines need; the message says what, and what to do."""


def _version_key(path):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def find_kernel():
    """(kernel, directory of its modules): the newest that has the modules that the laboratory needs."""
    refused = []
    for kernel in sorted(Path("/boot").glob("vmlinuz-*"), key=_version_key, reverse=True):
        modules = Path("/lib/modules") / kernel.name.removeprefix("vmlinuz-")
        lacking = _lacking(modules)
        if not lacking:
            return kernel, modules
        refused.append(f"{kernel} lacks {', '.join(lacking)}")
    raise CannotRun(
        f"no kernel to boot ({'; '.join(refused) or 'none in /boot'}): run third_party/install, which brings linux-image-amd64"
    )


def find_qemu():
    qemu = shutil.which("qemu-system-x86_64")
    if not qemu:
        raise CannotRun(
            "no qemu-system-x86_64: run third_party/install, which brings qemu-system-x86"
        )
    return qemu


def check_can_run():
    """CannotRun if anything is missing that booting needs."""
    find_qemu()
    find_kernel()
    for program, package in ((BUSYBOX, "busybox-static"), ("cpio", "cpio"), ("modprobe", "kmod")):
        if not shutil.which(program, path="/bin:/usr/bin:/sbin:/usr/sbin"):
            raise CannotRun(f"no {program}: run third_party/install, which brings {package}")


def unpack_kernel(kernel, directory):
    """The ELF file inside of a Debian kernel, which QEMU can start directly (PVH): unpacking it in the machine takes longer than all the rest of
    the kernel's start. The kernel as it is if it is packed otherwise."""
    packed = kernel.read_bytes()
    start = packed.find(b"\xfd7zXZ\0")
    if start < 0:
        return kernel
    try:
        elf = lzma.LZMADecompressor().decompress(packed[start:])
    except lzma.LZMAError:
        return kernel
    if not elf.startswith(b"\x7fELF"):
        return kernel
    unpacked = Path(directory) / "vmlinux"
    unpacked.write_bytes(elf)
    return unpacked


def _dependencies(modules):
    """Name of a module -> (its file, names of those it needs), from modules.dep."""
    table = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        file, needs = line.split(":", 1)
        table[_name(file)] = (modules / file, [_name(need) for need in needs.split()])
    return table


def _name(file):
    return Path(file).name.split(".ko", 1)[0].replace("-", "_")


def _built_in(modules):
    return {_name(line) for line in (modules / "modules.builtin").read_text().splitlines()}


def _lacking(modules):
    try:
        known = set(_dependencies(modules)) | _built_in(modules)
    except OSError as error:
        return [str(error)]
    return [name for name in MODULES if name not in known]


def _in_order(names, modules):
    """Files of the modules and of all that they need, each after what it needs."""
    table, built_in, ordered = _dependencies(modules), _built_in(modules), []

    def visit(name):
        if name in built_in:
            return
        file, needs = table[name]
        for need in reversed(needs):  # modules.dep names the deepest last
            visit(need)
        if file not in ordered:
            ordered.append(file)

    for name in names:
        visit(name)
    return ordered


def make_initramfs(modules, settings, directory):
    """Writes directory/initramfs.cpio; `settings` become the shell variables that initramfs_init and the agent read."""
    tree = Path(directory) / "initramfs"
    for name in ("bin", "modules"):
        (tree / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, tree / "bin/busybox")
    shutil.copy(HERE / "initramfs_init", tree / "init")
    (tree / "init").chmod(0o755)
    files = _in_order(MODULES, modules)
    for file in files:
        shutil.copy(file, tree / "modules")
    settings = {"modules": " ".join(file.name for file in files), **settings}
    (tree / "settings").write_text(
        "".join(f"export {key}={shlex.quote(str(value))}\n" for key, value in settings.items())
    )
    image = Path(directory) / "initramfs.cpio"
    names = "\n".join(str(path.relative_to(tree)) for path in [tree, *sorted(tree.rglob("*"))])
    with open(image, "wb") as out:
        subprocess.run(
            ["cpio", "--quiet", "-o", "-H", "newc", "-R", "0:0"],
            input=names.encode(),
            cwd=tree,
            stdout=out,
            check=True,
        )
    shutil.rmtree(tree)
    return image
