"""A line to a server on loopback that can be slow, be cut, break after some bytes, or flip bits."""

import asyncio


class FaultyLine:
    """Bits are flipped only deep inside of large pieces, where the payload is, not the words around it."""

    def __init__(self, port, *, before_each=None):
        """*before_each*: awaited before each piece goes on."""
        self._target, self._before_each = port, before_each
        self.port = 0
        self.cut = False
        self.break_after = None  # bytes of one connection, in either direction
        self.flips = 0  # large pieces still to be damaged
        self.broken = self.flipped = 0  # how often it happened
        self._server, self._writers = None, set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()
        self.abort()
        await asyncio.sleep(0)

    def abort(self):
        """End every connection over it."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader, writer):
        self._writers.add(writer)
        other = None
        try:
            if self.cut:
                return
            far_reader, other = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(other)
            left = [self.break_after]
            ways = [self._pump(reader, other, left), self._pump(far_reader, writer, left)]
            await asyncio.gather(*ways)
        except OSError:
            pass
        finally:
            for each in (writer, other):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()

    async def _pump(self, reader, writer, left):
        while piece := await reader.read(65_536):
            if self._before_each is not None:
                await self._before_each()
            if self.cut or (left[0] is not None and len(piece) > left[0]):
                self.broken += 1
                raise ConnectionResetError
            if left[0] is not None:
                left[0] -= len(piece)
            if self.flips and len(piece) > 20_000:
                self.flips, self.flipped = self.flips - 1, self.flipped + 1
                middle = len(piece) // 2
                piece = piece[:middle] + bytes([piece[middle] ^ 1]) + piece[middle + 1 :]
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
